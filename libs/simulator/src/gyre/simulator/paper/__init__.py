"""The paper's own figures, and one set of parameters with which the simulator meets them."""
