package hub

// resourceQuery asks for a page of resources.
type resourceQuery struct {
	prefix string // of the keys
	after  string // the page begins behind this key
	limit  int    // 1 to maxResources; 0 = defaultResources
}

const (
	defaultResources = 100
	maxResources     = 1000
)

// resourcePage is a part of a room's resources, by key, and the position that they
// belong to.
type resourcePage struct {
	Resources []resource `json:"resources"`
	// Next is the after of the next page; empty at the end.
	Next   string `json:"next,omitempty"`
	Offset uint64 `json:"offset"`
	Epoch  string `json:"epoch"`
}

// getResource returns one resource; it blocks.
func (db *database) getResource(w *caller, room, key string) (*resource, *problem) {
	return nil, newProblem("unavailable", "")
}

// listResources returns a page of at most maxResourcePage bytes, one resource
// excepted; it blocks.
func (db *database) listResources(w *caller, room string, q resourceQuery) (*resourcePage, *problem) {
	return nil, newProblem("unavailable", "")
}

// snapshot returns all resources of a room with the position that they belong to,
// or too_large when they take more than maxBytes; it blocks.
func (db *database) snapshot(w *caller, room string, maxBytes int) (*resourcePage, *problem) {
	return nil, newProblem("unavailable", "")
}
