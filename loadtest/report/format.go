package report

import (
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// formatNumber shows three significant digits, all digits left of the point,
// and groups thousands: 0.632, 63.2, 100.4, 12,000. Beyond 10^15 it is
// exponential.
func formatNumber(v float64) string {
	switch size := math.Abs(v); {
	case !finite(v):
		return "–"
	case size >= 1e15:
		return strconv.FormatFloat(v, 'g', 3, 64)
	case size >= 1000 || v == math.Trunc(v):
		return group(strconv.FormatFloat(math.Round(v), 'f', 0, 64))
	case size >= 9.995:
		return group(strconv.FormatFloat(v, 'f', 1, 64))
	case size >= 0.9995:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case size < 0.001:
		return strconv.FormatFloat(v, 'g', 2, 64)
	default:
		return strconv.FormatFloat(v, 'f', 2-int(math.Floor(math.Log10(size))), 64)
	}
}

// group puts commas between thousands of a decimal number.
func group(digits string) string {
	sign := ""
	if strings.HasPrefix(digits, "-") {
		sign, digits = "-", digits[1:]
	}
	whole, rest, point := strings.Cut(digits, ".")
	var b strings.Builder
	for i, d := range whole {
		if i > 0 && (len(whole)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(d)
	}
	if point {
		b.WriteString("." + rest)
	}
	return sign + b.String()
}

func formatCount[N int | int64](n N) string { return group(strconv.FormatInt(int64(n), 10)) }

// formatValue is a number with its unit, bytes in the unit that suits them.
func formatValue(v float64, unit string) string {
	if unit == "bytes" {
		size, name := byteUnit(v)
		return formatNumber(v/size) + " " + name
	}
	return strings.TrimSpace(formatNumber(v) + " " + unitName(unit))
}

// byteUnit is the largest binary unit that v reaches, and its size.
func byteUnit(v float64) (size float64, name string) {
	size, name = 1, "B"
	for _, next := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if math.Abs(v) < size*1024 {
			break
		}
		size, name = size*1024, next
	}
	return size, name
}

// unitName is how people write a unit of the JSON form.
func unitName(unit string) string {
	switch unit {
	case "us":
		return "µs"
	case "x":
		return "×"
	case "1/s":
		return "/s"
	default:
		return unit
	}
}

// exact shows all digits of a number that people chose, such as a target.
func exact(v float64) string { return group(strconv.FormatFloat(v, 'f', -1, 64)) }

// formatDuration is exact to the second from a minute on.
func formatDuration(d time.Duration) string {
	if d < time.Minute {
		return formatNumber(d.Seconds()) + " s"
	}
	return strings.TrimSuffix(d.Round(time.Second).String(), "0s")
}

// shown is the value with its unit, and its range where it has one.
func (f Figure) shown() string {
	shown := formatValue(f.Value, f.Unit)
	if span := f.span(); span != "" {
		shown += " (" + span + ")"
	}
	return shown
}

// span is the range of the value; empty without one.
func (f Figure) span() string {
	if f.Low == 0 && f.High == 0 {
		return ""
	}
	return formatNumber(f.Low) + "–" + formatNumber(f.High)
}

// ratio is what delivery was of the floor, with its range.
func (f Floor) ratio() string {
	return Figure{Value: f.RatioP95, Low: f.RatioP95Low, High: f.RatioP95High, Unit: "x"}.shown()
}

// target is the bound of a figure, such as "≤ 100 ms"; empty without one.
func (f Figure) target() string {
	if f.Target == nil {
		return ""
	}
	sign := "≤ "
	if f.Better == Higher {
		sign = "≥ "
	}
	return strings.TrimSpace(sign + exact(*f.Target) + " " + unitName(f.Unit))
}

// standing is "reached", "missed", or empty without a target.
func (f Figure) standing() string {
	switch reached, judged := f.Reached(); {
	case !judged:
		return ""
	case reached:
		return "reached"
	default:
		return "missed"
	}
}

// printable replaces what could move a terminal's cursor, colour it or turn its
// text around, so that a name met in a test cannot.
func printable(s string) string {
	return strings.Map(func(c rune) rune {
		switch {
		case c == '\n' || c == '\t':
			return ' '
		case unicode.IsGraphic(c):
			return c
		default:
			return '·'
		}
	}, s)
}
