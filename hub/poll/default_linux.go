package poll

// Default returns the best backend of this system.
func Default() Backend { return Epoll() }
