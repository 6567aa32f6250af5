"""The sharded engine: devices over a mesh of JAX devices, in one process or many."""
