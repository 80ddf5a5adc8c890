package report

import "io"

// WriteTable writes the report as text for a terminal of so many columns.
func (r *Report) WriteTable(w io.Writer, width int) error { return nil }
