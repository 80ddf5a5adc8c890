package report

import "slices"

// Reference is a figure of another system, there for orientation. It was taken
// on the named hardware, so no ratio to this run's figures is ever computed.
type Reference struct {
	System   string  `json:"system"`
	What     string  `json:"what"`
	Low      float64 `json:"low"`
	High     float64 `json:"high"` // equal to Low for a single figure
	Unit     string  `json:"unit"`
	Hardware string  `json:"hardware"`
	Source   string  `json:"source"` // published, or measured for comparison
}

// value is the figure or its range, with the unit.
func (r Reference) value() string {
	if r.High > r.Low {
		return formatNumber(r.Low) + "–" + formatValue(r.High, r.Unit)
	}
	return formatValue(r.Low, r.Unit)
}

// referenceKind is the references that may be read side by side.
type referenceKind struct {
	What, Hardware, Source string
	Systems                []referenceValue
}

type referenceValue struct{ System, Value string }

// byKind groups references in order of their first appearance.
func byKind(refs []Reference) []referenceKind {
	var kinds []referenceKind
	for _, r := range refs {
		i := slices.IndexFunc(kinds, func(k referenceKind) bool {
			return k.What == r.What && k.Hardware == r.Hardware && k.Source == r.Source
		})
		if i < 0 {
			i = len(kinds)
			kinds = append(kinds, referenceKind{What: r.What, Hardware: r.Hardware, Source: r.Source})
		}
		kinds[i].Systems = append(kinds[i].Systems, referenceValue{r.System, r.value()})
	}
	return kinds
}

// references are the known figures for a scenario.
func references(scenario string) []Reference {
	const (
		vm       = "a virtual machine with 2 cores, generator on it"
		measured = "measured for comparison"
		burst    = "10 events at once to 10,000 connections in one room, p95"
		message  = "one message to 10,000 subscribers, until the last has it"
		cpu      = "server CPU per delivery in that burst"
		memory   = "server memory per connection (RSS)"
		systems  = "Centrifugo 6.9.1, Nakama, plain Node.js ws, Socket.IO, PocketBase:"
	)
	perConn := Reference{systems, memory, 6, 65, "KB", vm, measured}
	switch scenario {
	case "rooms", "connect":
		return []Reference{perConn}
	case "delivery":
		return []Reference{
			{"Centrifugo 6.9.1", burst, 715, 896, "ms", vm, measured},
			{"Nakama", burst, 844, 844, "ms", vm, measured},
			{"plain Node.js ws", burst, 863, 863, "ms", vm, measured},
			{"Socket.IO", burst, 1182, 1182, "ms", vm, measured},
			{"PocketBase", burst, 2306, 2306, "ms", vm, measured},
			{systems, cpu, 9, 39, "us", vm, measured},
			perConn,
		}
	case "fanout":
		return []Reference{
			{"Nakama 3.40 with PostgreSQL", message, 117, 117, "ms", vm, measured},
			{"another system", message, 1189, 1189, "ms", "an Intel Core i7-8700K", "published"},
		}
	default:
		return nil
	}
}
