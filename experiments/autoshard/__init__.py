"""AutoShard's transfer matrices: learned policies on tasks unlike their training tasks."""
