"""In-network aggregation: figures of a reference simulator and published headlines, beside those of plait.

    reference  figures of an independent packet simulator, and what papers report
    cases      one run as a value, and the folder that keeps those that are done
    compare    `rows`, where to start: which runs each row takes, and what is allowed

ESA, INAlloc, NetPack and GRID have no public code: their rows are of plait's versions after published descriptions.
"""
