"""Workers: a system of another machine, served by `anytpu worker` and used through `grpc://host:port`."""
