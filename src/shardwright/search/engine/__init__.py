"""What of the engine is Python: the arrays that it works on, first solutions, and the session that runs starts and kicks."""
