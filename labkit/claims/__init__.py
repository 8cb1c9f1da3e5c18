"""What was published, as data and as claims, and the ledger that holds it against measurements.

``published`` has the papers' tables, ``transcriptions`` their two transcriptions, ``stated`` what
their words say of them; ``reading`` reads ``data/claims.toml``; ``kinds`` brings a claim down to
estimates with regions, ``settings`` compares what it asks with what a rig has, ``ledger`` decides.
"""
