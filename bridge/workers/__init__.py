"""Several bridges of one host behind one port: their places, and who looks after them."""
