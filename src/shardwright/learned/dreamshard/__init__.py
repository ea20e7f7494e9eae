"""DreamShard: a policy that places tables one after another; it learns on costs that a network estimates."""
