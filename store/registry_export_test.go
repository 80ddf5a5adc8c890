package store

import "context"

// SetMaxPages makes a full disk of the registry's file, until it is opened anew.
func (r *Registry) SetMaxPages(n string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var got int64
	return r.link.conn.QueryRowContext(context.Background(), "PRAGMA max_page_count="+n).Scan(&got)
}
