"""`local`: a small batched CPU engine that speaks SGLang's HTTP contract."""
