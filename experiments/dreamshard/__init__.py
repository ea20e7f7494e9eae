"""DreamShard's tables: learned placement beside heuristics, searches and a bound."""
