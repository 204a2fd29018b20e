"""Engines of a cell behind one port (`base`): `local` here, SGLang as a peer implementation."""
