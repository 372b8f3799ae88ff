"""In-network aggregation: figures of a reference simulator and published headlines, next to plait's.

    reference  figures of an independent packet simulator, and results of papers
    cases      one run as a value, and how it is made
    compare    `rows`, where to start: the runs of each row, and its tolerance

ESA, INAlloc, NetPack and GRID have no public code: their rows are of plait's versions after published descriptions.
"""
