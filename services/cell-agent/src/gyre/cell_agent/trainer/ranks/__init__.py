"""How ranks find, follow and reduce with one another, in a cell and across cells."""
