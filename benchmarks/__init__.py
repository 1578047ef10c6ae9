import sys

if sys.argv[:1] == ["-m"]:  # python -m benchmarks.NAME
    from minirl.utils.interrupts import say_interrupts

    say_interrupts()
