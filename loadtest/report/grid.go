package report

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// column describes a column of a text table.
type column struct {
	name string
	left bool // aligned left; numbers are aligned right
	fold bool // the last column only: long cells continue below themselves
	drop int  // left out where the table is too wide, lowest first; 0: never
}

const gridIndent = "  "

// grid writes aligned columns under their names, which are left out where all
// are empty.
func (t *textTable) grid(columns []column, rows [][]string) {
	for _, row := range rows {
		for i := range row {
			row[i] = printable(row[i])
		}
	}
	kept := t.fitting(columns, rows)
	widths := make([]int, len(columns))
	for _, i := range kept {
		widths[i] = columnWidth(columns[i], rows, i)
	}
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	if slices.ContainsFunc(names, func(name string) bool { return name != "" }) {
		rows = slices.Insert(rows, 0, names)
	}
	for _, row := range rows {
		t.row(columns, kept, widths, row)
	}
}

// fitting chooses the columns to show: those to drop go one by one, lowest
// first, until the rest fits.
func (t *textTable) fitting(columns []column, rows [][]string) []int {
	var kept []int
	used := len(gridIndent)
	for i, c := range columns {
		kept = append(kept, i)
		if !c.fold {
			used += columnWidth(c, rows, i) + 2
		}
	}
	for used-2 > t.width {
		drop := -1
		for at, i := range kept {
			if d := columns[i].drop; d > 0 && (drop < 0 || d < columns[kept[drop]].drop) {
				drop = at
			}
		}
		if drop < 0 {
			break
		}
		used -= columnWidth(columns[kept[drop]], rows, kept[drop]) + 2
		kept = slices.Delete(kept, drop, drop+1)
	}
	return kept
}

func columnWidth(c column, rows [][]string, i int) int {
	width := utf8.RuneCountInString(c.name)
	for _, row := range rows {
		width = max(width, utf8.RuneCountInString(row[i]))
	}
	return width
}

func (t *textTable) row(columns []column, kept, widths []int, row []string) {
	line := gridIndent
	for at, i := range kept {
		if at > 0 {
			line += "  "
		}
		if columns[i].fold {
			t.foldedCell(line, row[i])
			return
		}
		padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(row[i]))
		if columns[i].left {
			line += row[i] + padding
		} else {
			line += padding + row[i]
		}
	}
	t.WriteString(strings.TrimRight(line, " ") + "\n")
}

// foldedCell ends a line with a cell that continues on the lines below: at its
// own column, or further left where less than a third of the width is left.
func (t *textTable) foldedCell(line, cell string) {
	start := utf8.RuneCountInString(line)
	if start+utf8.RuneCountInString(cell) > t.width && t.width-start < t.width/3 {
		t.WriteString(strings.TrimRight(line, " ") + "\n")
		start = 2 * len(gridIndent)
		line = strings.Repeat(" ", start)
	}
	for _, part := range fold(cell, t.width-start) {
		t.WriteString(strings.TrimRight(line+part, " ") + "\n")
		line = strings.Repeat(" ", start)
	}
}
