"""What the recipe needs and ESPnet3 has not; each file says what that is."""
