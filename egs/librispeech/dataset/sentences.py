"""Sentences in the manner of read books, from a grammar of a few hundred words.

ESPnet brings no text to be read.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

# A <symbol> expands to one of its alternatives. No two words sound alike (so "night",
# but not "knight"): what is heard must decide how it is written.
GRAMMAR: dict[str, Sequence[str]] = {
    "sentence": (
        "<time> <someone> <act>",
        "<someone> <act> <time>",
        "<someone> <act> and then <act>",
        "<someone> <act> but <someone> <act>",
        "<someone> <act> because everybody was <mood>",
        "<someone> was so <mood> that nobody <act>",
        "<someone> and <someone> <act> <time>",
        "<nature> while <someone> <act>",
        "<nature> and <someone> <act>",
        "when <nature> <someone> <act>",
        "although <nature> <someone> <act> <time>",
        "nobody knows why <someone> <act>",
        "everybody in the <place> believed that <someone> <act>",
        "i remember that <someone> <act> <time>",
        "we heard that <someone> <act>",
        "it is said that <nature> <time>",
        "it was <someone> who <act>",
        "<someone> whose <thing> was <condition> <act>",
        "how could you forget the <condition> <thing> <where>",
        "please give the <thing> to <someone> <time>",
        "we must find <owner> <condition> <thing> before <someone> does",
        "tell <someone> that the <thing> is <where>",
        "have you seen the <condition> <thing> which was <where>",
        "<number> <people> <moved> <where> <time>",
        "<number> <people> and <number> <animals> <moved> <where>",
        "the <condition> <thing> cost <number> dollars <time>",
        "the <place> is <number> miles from the <place>",
    ),
    "act": (
        "<moved> <where>",
        "<moved> <manner> <where>",
        "<often> <moved> <where>",
        "<did> <owner> <thing> <where>",
        "<did> the <condition> <thing>",
        "<did> <number> <animals> <where>",
        "<often> <did> the <thing>",
        "spoke <manner> to <someone>",
        "asked <someone> about the <thing>",
        "thought of <someone> who <moved> <where>",
    ),
    "someone": (
        "the <person>",
        "the <mood> <person>",
        "the <mood> <person> with the <thing>",
        "<owner> <relative>",
        "<owner> <mood> <relative>",
        "a <person> from the <place>",
        "doctor <name>",
        "<name>",
    ),
    "where": (
        "<near> the <place>",
        "<near> the <look> <place>",
        "<near> the <place> of <name>",
        "<near> <owner> <relative>",
    ),
    "time": (
        "early in the <hour>",
        "on <day> <hour>",
        "since <day>",
        "until <day>",
        "last <season>",
        "in the middle of <season>",
        "at the end of <season>",
        "<number> weeks ago",
        "for <number> years",
        "before <meal>",
        "after <meal>",
        "during the war",
    ),
    "nature": (
        "the wind howled <where>",
        "the <look> moon shone <near> the <place>",
        "the snow covered the <place>",
        "a <look> cloud hung <near> the <place>",
        "the storm broke <time>",
        "the sun set <near> the <look> <place>",
        "the leaves fell <manner>",
        "the river froze <time>",
    ),
    "person": "captain farmer teacher soldier gardener painter merchant servant "
    "shepherd hunter stranger judge queen widow woman boy girl lady traveler "
    "fisherman".split(),
    "people": "children sailors students visitors prisoners monks".split(),
    "relative": "mother father brother sister uncle daughter cousin friend neighbor "
    "grandmother".split(),
    "name": "anna arthur charles edward emily george helen henry margaret oliver "
    "rebecca thomas victoria william".split(),
    "animals": "horses sheep rabbits pigeons foxes cattle chickens wolves".split(),
    "thing": "letter lantern basket bottle candle watch blanket hammer ladder mirror "
    "ribbon saddle umbrella wagon violin picture book purse diamond sword newspaper "
    "photograph".split(),
    "place": "village forest mountain harbor market kitchen garden orchard castle "
    "church valley island bridge meadow stable cottage library lake desert "
    "palace".split(),
    "near": "near behind beside under across beyond above around toward "
    "against".split(),
    "moved": "walked waited slept laughed stood listened whispered wandered hurried "
    "returned rested stumbled worked danced gathered vanished".split(),
    "did": "carried found lost painted repaired borrowed dropped kept examined "
    "remembered discovered admired described followed brought noticed".split(),
    "manner": "slowly quietly suddenly carefully gladly quickly softly "
    "secretly".split(),
    "often": "often never always seldom".split(),
    "mood": "old young gentle proud honest clever silent weary cheerful lonely foolish "
    "angry hungry happy famous curious".split(),
    "condition": "broken golden heavy wooden yellow empty dusty crooked painted "
    "borrowed ancient silver forgotten beautiful".split(),
    "look": "dark distant narrow peaceful green purple terrible gloomy bright "
    "cold".split(),
    "owner": "his her my your our".split(),
    "number": (
        *"three five six seven nine ten eleven twelve fifteen twenty thirty".split(),
        "fifty",
        "a hundred",
        "a thousand",
    ),
    "hour": "morning afternoon evening night".split(),
    "day": "monday tuesday wednesday thursday friday saturday".split(),
    "season": "spring summer autumn winter april december".split(),
    "meal": "breakfast dinner supper".split(),
}


def generate_sentences(seed: str) -> Iterator[str]:
    """Yield random sentences without end, in upper case without punctuation.

    Args:
        seed: Equal seeds yield equal sentences, on any machine.
    """
    rng = random.Random(seed)
    while True:
        yield _expand("<sentence>", rng)


def _expand(text: str, rng: random.Random) -> str:
    while "<" in text:
        text = re.sub(r"<(\w+)>", lambda match: rng.choice(GRAMMAR[match[1]]), text)
    return re.sub(r"\ba (?=[aeiou])", "an ", text).upper()
