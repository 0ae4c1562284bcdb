"""Pages of the KV cache and the radix tree that shares them. No torch: a page is a number."""
