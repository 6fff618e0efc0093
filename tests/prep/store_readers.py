"""What test processes run; a module of its own, so that spawned processes can import it."""

import random

from fracdna_prep import genome
from fracdna_prep.interval import Interval
from fracdna_prep.vocabulary import DNA

WIDTH = 5_000


def count_wrong_reads(store, texts, seed, reads, results):
    """Reads at random, compares with the text, and counts how often the bases file is opened."""
    openings = []
    opened = genome._open_map

    def counted(*arguments):
        openings.append(arguments)
        return opened(*arguments)

    genome._open_map = counted
    draw = random.Random(seed)
    wrong = 0
    for _ in range(reads):
        name = draw.choice(sorted(texts))
        start = draw.randrange(len(texts[name]) - WIDTH)
        ids = store.fetch(Interval(name, start, start + WIDTH))
        wrong += DNA.decode(ids) != texts[name][start : start + WIDTH]
    results.put((wrong, len(openings)))
