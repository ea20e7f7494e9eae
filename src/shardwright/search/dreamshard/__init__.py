"""DreamShard: a policy that places tables one after another, learned on costs that a network estimates."""
