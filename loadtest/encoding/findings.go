package encoding

import (
	"fmt"
	"math"
	"strings"
)

// clear is how much better something has to be before it is called better: less is
// not told from chance and from the machine.
const clear = 0.05

// findings puts into words what the figures say; what it says of an encoding is
// decided by them alone.
func findings(r *Result) []string {
	var all []string
	for i := range r.Ratios {
		all = append(all, onThroughput(r, &r.Ratios[i]))
	}
	if len(r.Ratios) > 0 {
		all = append(all, onWork(r)...)
	}
	if len(r.Shapes) > 0 {
		all = append(all, onBytes(r.Shapes), onCompressedText(r.Shapes), onCompression(r.Shapes), onCPU(r.Shapes))
		all = append(all, whereNot(r)...)
	}
	return all
}

func onThroughput(r *Result, ratio *Ratio) string {
	t := ratio.Throughput
	text := fmt.Sprintf("%d objects: %s makes %s as many round trips as JSON (± %.2f)", ratio.Objects, ratio.Encoding, times(t.Mean), t.Stdev)
	if ratio.Theirs > 0 {
		text += fmt.Sprintf(", compared with %s in the article", times(ratio.Theirs))
	}
	if r.Parameters.ServerCPU {
		text += fmt.Sprintf(". By the CPU time of clients and server it is %s, and by the CPU time of the server alone %s",
			times(ratio.AllCPU), times(ratio.ServerCPU))
	}
	return text + "."
}

// onWork says whose the work is, which is why a ratio is another than theirs.
func onWork(r *Result) []string {
	var all []string
	for _, row := range r.Rows {
		if row.Encoding != JSON || !r.Parameters.ServerCPU {
			continue
		}
		s := row.All
		used := s.Server + s.Client
		all = append(all, fmt.Sprintf("%d objects in JSON: the server takes %s of the CPU time. Encoding and parsing of objects takes %s, all of it in the clients. "+
			"This server only checks a message and sends it on. The article's server parsed and encoded it.",
			row.Objects, percent(s.Server/used), percent((s.Build+s.Parse)/used)))
	}
	if full := leastInUse(r); r.Parameters.ServerCPU && full < 0.9 {
		all = append(all, fmt.Sprintf("The cores were not full: in one load, clients and server used %s of them. Other processes used the machine, "+
			"or more --clients would reach a higher peak. The ratios by CPU time hold in both cases.", percent(full)))
	}
	return all
}

func leastInUse(r *Result) float64 {
	least := 1.0
	for _, row := range r.Rows {
		least = min(least, row.All.InUse(cores()))
	}
	return least
}

func onBytes(shapes []Shape) string {
	least, most := extremes(shapes, func(s *Shape) float64 { return sizeOf(s, CBOR, JSON) })
	return fmt.Sprintf("Bytes: CBOR takes from %s of the bytes of JSON (%s) to %s (%s).", percent(least.v), least.of, percent(most.v), most.of)
}

// onCompressedText answers the article's readers' first question.
func onCompressedText(shapes []Shape) string {
	smaller := names(shapes, func(s *Shape) bool { return sizeOf(s, GzipJSON, CBOR) <= 1-clear })
	larger := names(shapes, func(s *Shape) bool { return sizeOf(s, GzipJSON, CBOR) >= 1+clear })
	var ratio float64
	for i := range shapes {
		ratio += math.Log(sizeOf(&shapes[i], GzipCBOR, GzipJSON)) / float64(len(shapes))
	}
	return fmt.Sprintf("Compressed text against binary, a question of the article's readers: gzip JSON is smaller than CBOR for %s, and larger for %s. "+
		"Compressed, both are alike: gzip CBOR takes %s of the bytes of gzip JSON (geometric mean).", list(smaller, shapes), list(larger, shapes), percent(math.Exp(ratio)))
}

// onCompression answers the second: what compressing costs.
func onCompression(shapes []Shape) string {
	cost := func(s *Shape) float64 {
		zipped, plain := s.Form(GzipJSON), s.Form(CBOR)
		return (zipped.CompressNS + zipped.DecompressNS) / plain.Both()
	}
	cheaper := names(shapes, func(s *Shape) bool { return s.Form(GzipJSON).Both() <= (1-clear)*s.Form(CBOR).Both() })
	least, most := extremes(shapes, cost)
	return fmt.Sprintf("The cost of compression, their other question: to compress and decompress text takes from %s (%s) to %s (%s) the CPU time that it takes to "+
		"encode and decode the same message in CBOR. In total, gzip JSON takes less CPU time than CBOR for %s.",
		times(least.v), least.of, times(most.v), most.of, list(cheaper, shapes))
}

func onCPU(shapes []Shape) string {
	least, most := extremes(shapes, cpuOfCBOR)
	return fmt.Sprintf("CPU time of encoding and decoding: CBOR takes from %s of the time of JSON (%s) to %s (%s).", percent(least.v), least.of, percent(most.v), most.of)
}

// whereNot says where binary does not pay.
func whereNot(r *Result) []string {
	bytes := names(r.Shapes, func(s *Shape) bool { return sizeOf(s, CBOR, JSON) > 1-clear })
	cpu := names(r.Shapes, func(s *Shape) bool { return cpuOfCBOR(s) > 1-clear })
	all := []string{fmt.Sprintf("CBOR saves less than 5 %% of the bytes for %s, and less than 5 %% of the CPU time for %s.", list(bytes, r.Shapes), list(cpu, r.Shapes))}
	for i := range r.Ratios {
		if t := r.Ratios[i].Throughput; r.Ratios[i].Encoding == CBOR && t.Mean-t.Stdev < 1+clear {
			all = append(all, fmt.Sprintf("CBOR gains nothing clear in round trips of %d objects: %s ± %.2f.", r.Ratios[i].Objects, times(t.Mean), t.Stdev))
		}
	}
	return all
}

func sizeOf(s *Shape, a, b string) float64 {
	return over(float64(s.Form(a).Bytes), float64(s.Form(b).Bytes))
}

func cpuOfCBOR(s *Shape) float64 { return over(s.Form(CBOR).Both(), s.Form(JSON).Both()) }

// An extreme is a figure, and the shape that it is of.
type extreme struct {
	v  float64
	of string
}

func extremes(shapes []Shape, figure func(*Shape) float64) (least, most extreme) {
	for i := range shapes {
		v := figure(&shapes[i])
		if i == 0 || v < least.v {
			least = extreme{v, shapes[i].Name}
		}
		if i == 0 || v > most.v {
			most = extreme{v, shapes[i].Name}
		}
	}
	return least, most
}

func names(shapes []Shape, which func(*Shape) bool) []string {
	var all []string
	for i := range shapes {
		if which(&shapes[i]) {
			all = append(all, shapes[i].Name)
		}
	}
	return all
}

// list names some of the shapes.
func list(some []string, of []Shape) string {
	switch len(some) {
	case 0:
		return "none"
	case len(of):
		return "every shape"
	}
	return strings.Join(some, ", ")
}

func times(v float64) string { return fmt.Sprintf("%.2f times", v) }

func percent(v float64) string { return fmt.Sprintf("%.0f %%", 100*v) }
