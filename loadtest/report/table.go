package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// minWidth is the width below which text is no longer folded to fit.
const minWidth = 40

// WriteTable writes the report as text for a terminal of so many columns (80
// where width is 0 or less): a part for each scenario, then the checks, what was
// not tested, and the verdict in the last line. Columns of lesser interest are
// left out where they do not fit; the JSON form has them all.
func (r *Report) WriteTable(w io.Writer, width int) error {
	if width <= 0 {
		width = 80
	}
	t := &textTable{width: max(width, minWidth)}
	t.header(r)
	for i := range r.Scenarios {
		t.scenario(&r.Scenarios[i])
	}
	t.checks(r.Checks)
	t.list("not tested", r.NotTested)
	t.list("problems", r.Problems)
	t.paragraph("", r.verdictLine())
	if _, err := io.WriteString(w, t.String()); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// outcome is the verdict in words: why it is not a pass, and how many checks and
// targets stand behind it.
func (r *Report) outcome() (why, counts string) {
	var failed, missed []string
	passed, unchecked, reached := 0, 0, 0
	for _, c := range r.Checks {
		switch c.Result {
		case Failed:
			failed = append(failed, c.label())
		case Passed:
			passed++
		default:
			unchecked++
		}
	}
	for _, s := range r.Scenarios {
		for _, f := range s.Figures {
			if ok, judged := f.Reached(); ok {
				reached++
			} else if judged {
				missed = append(missed, f.Title)
			}
		}
	}
	why = strings.Join(failed, "; ")
	if why == "" && r.Partial {
		why = "the run ended early"
	} else if why == "" && passed == 0 {
		why = "nothing was checked"
	}
	counts = counted(passed, "check") + " passed"
	if len(failed) > 0 {
		counts = fmt.Sprintf("%d of %s passed", passed, counted(passed+len(failed), "check"))
	}
	if unchecked > 0 {
		counts += fmt.Sprintf(", %d not checked", unchecked)
	}
	if n := reached + len(missed); n > 0 {
		counts += fmt.Sprintf("; %d of %s reached", reached, counted(n, "target"))
	}
	if len(missed) > 0 {
		counts += ", missed: " + strings.Join(missed, ", ")
	}
	return why, counts
}

// verdictLine is the outcome in one line: the word, what failed, the counts.
func (r *Report) verdictLine() string {
	why, counts := r.outcome()
	line := r.verdict().word()
	if why != "" {
		line += ": " + why
	}
	return line + " (" + counts + ")"
}

func (v Verdict) word() string { return strings.ToUpper(string(v)) }

// label is the check's name with its scenario.
func (c Check) label() string {
	if c.Scenario == "" {
		return c.Name
	}
	return c.Scenario + ": " + c.Name
}

// textTable collects lines no longer than width, words longer than that excepted.
type textTable struct {
	strings.Builder
	width int
}

func (t *textTable) header(r *Report) {
	tool := r.Tool.Name + " " + r.Tool.Version
	if r.Tool.Commit != "" {
		tool += " (" + r.Tool.Commit + ")"
	}
	t.paragraph("", tool+", "+r.Started.UTC().Format("2006-01-02 15:04:05 MST")+", "+formatDuration(r.Ended.Sub(r.Started)))
	for _, line := range r.Environment.lines() {
		t.paragraph("  ", line)
	}
	if len(r.Settings.Raised) > 0 {
		var raised []string
		for _, s := range r.Settings.Raised {
			raised = append(raised, s.Name+" = "+s.Value)
		}
		t.paragraph("  ", "limits raised for the run: "+strings.Join(raised, ", "))
	}
}

// lines tells the environment in a few sentences.
func (e Environment) lines() []string {
	machine := fmt.Sprintf("%s, %d cores", e.CPU, e.Cores)
	if e.MemoryBytes > 0 {
		machine += ", " + formatValue(float64(e.MemoryBytes), "bytes")
	}
	system := fmt.Sprintf("%s %s, %s", e.OS, e.Kernel, e.Arch)
	if e.DescriptorLimit > 0 {
		system += ", " + formatCount(e.DescriptorLimit) + " descriptors"
	}
	if e.DataFileSystem != "" {
		system += ", data on " + e.DataFileSystem
		if e.DataDisk != "" {
			system += " (" + e.DataDisk + ")"
		}
	}
	if e.LoadBefore != nil && e.LoadAfter != nil {
		system += fmt.Sprintf(", load %s before and %s after", exact(*e.LoadBefore), exact(*e.LoadAfter))
	}
	return []string{machine, system, e.where()}
}

// where says what the server shared with the generator.
func (e Environment) where() string {
	if e.SameMachine {
		return "server and generator on the same machine, sharing its processors"
	}
	return "the server may be on another machine; this one ran the generator"
}

func (t *textTable) scenario(s *Scenario) {
	t.title(s.Name)
	if s.What != "" {
		t.paragraph("  ", s.What)
	}
	t.rounds(s)
	if len(s.Figures) > 0 {
		rows := [][]string{}
		for _, f := range s.Figures {
			rows = append(rows, []string{f.Title, f.shown(), f.target(), f.standing()})
		}
		t.WriteByte('\n')
		t.grid([]column{{name: "figure", left: true}, {name: "value"}, {name: "target", left: true}, {name: "", left: true}}, rows)
	}
	if len(s.References) > 0 {
		t.WriteByte('\n')
		t.references(s.References)
	}
}

// references tells figures of other systems, those of the same kind together.
func (t *textTable) references(refs []Reference) {
	t.paragraph("  ", "other systems, on the hardware named; not to be divided by the figures above:")
	for _, kind := range byKind(refs) {
		var systems []string
		for _, s := range kind.Systems {
			systems = append(systems, s.System+" "+s.Value)
		}
		t.paragraph("  - ", fmt.Sprintf("%s, on %s, %s: %s", kind.What, kind.Hardware, kind.Source, strings.Join(systems, ", ")))
	}
}

func (t *textTable) checks(checks []Check) {
	if len(checks) == 0 {
		return
	}
	t.title("checks")
	rows := [][]string{}
	for _, c := range checks {
		mark := map[Result]string{Passed: "✓ passed", Failed: "✗ FAILED"}[c.Result]
		if mark == "" {
			mark = "– not checked"
		}
		rows = append(rows, []string{mark, c.label(), c.Detail})
	}
	t.grid([]column{{left: true}, {left: true}, {left: true, fold: true}}, rows)
}

func (t *textTable) list(title string, items []string) {
	if len(items) == 0 {
		return
	}
	t.title(title)
	for _, item := range items {
		t.paragraph("  - ", item)
	}
}

func (t *textTable) title(s string) { t.WriteString("\n" + printable(s) + "\n") }

// paragraph folds text at spaces; its lines after the first are indented by as
// much as the prefix.
func (t *textTable) paragraph(prefix, text string) {
	if prefix == "" && t.Len() > 0 {
		t.WriteByte('\n')
	}
	indent := strings.Repeat(" ", utf8.RuneCountInString(prefix))
	for i, line := range fold(printable(text), t.width-len(indent)) {
		if i > 0 {
			prefix = indent
		}
		t.WriteString(prefix + line + "\n")
	}
}

// fold breaks text at spaces into lines of at most so many runes; a longer word
// has a line of its own.
func fold(text string, width int) []string {
	var lines []string
	line, used := "", 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case used == 0:
			line, used = word, n
		case used+1+n <= width:
			line, used = line+" "+word, used+1+n
		default:
			lines = append(lines, line)
			line, used = word, n
		}
	}
	return append(lines, line)
}
