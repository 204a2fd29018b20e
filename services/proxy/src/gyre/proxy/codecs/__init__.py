"""Messages to tokens, tokens to turns, exactly: codecs of model families over `renderers`."""
