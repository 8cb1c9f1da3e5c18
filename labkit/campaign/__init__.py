"""From a plan to a dataset: trials run one by one, each stored whole."""
