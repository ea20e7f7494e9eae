"""The Python part of the engine: the arrays that it works on, first solutions, and the session that runs starts and kicks."""
