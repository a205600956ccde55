"""Request handlers, one module per API key. They translate; the rules live below them."""
