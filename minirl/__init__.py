"""minirl: reinforcement learning of language models on verifiable rewards, small enough to read in one sitting."""

import sys

if sys.argv[:1] == ["-m"]:  # python -m minirl.NAME, whose packages are imported before its first line
    from minirl.utils.interrupts import say_interrupts

    say_interrupts()
