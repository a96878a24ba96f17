from tests.egs.librispeech.conftest import an4_corpus  # noqa: F401
