"""What turns trials into verdicts: arrays and frames in, frames and figures out.

It starts nothing and knows no host or engine. Import from the modules: ``compare``, ``summary``,
``noise``, ``checks``, ``shift``, ``plots`` and the models.
"""
