package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// A Chart is lines over two axes, for a file of its own: an SVG without scripts,
// whose colours follow the reader's light or dark scheme. Lines also differ in
// their dashes and marks, for who cannot tell the colours apart.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Line
}

// An Axis says what is measured, with its unit. A linear one begins at 0; a
// logarithmic one leaves out what is not positive.
type Axis struct {
	Label string
	Log   bool
}

// A Line is one series of points, in the order they are joined.
type Line struct {
	Name   string
	Points []Dot
	Loose  bool // points that no line joins
}

// A Dot is one measurement. A doubtful one is drawn hollow. Note is shown when the
// reader points at it, after its figures.
type Dot struct {
	X, Y     float64
	Doubtful bool
	Note     string
}

// Where things are, in the SVG's own units.
const (
	chartWidth, chartHeight = 720.0, 420.0
	plotLeft, plotRight     = 84.0, 684.0
	plotTop, plotBottom     = 48.0, 330.0
	legendTop               = 388.0
	legendColumns           = 3
	legendRow               = 18.0
	markRadius              = 4.0
)

// colours are one for each series, in turn: light scheme, dark scheme, dashes.
var colours = []struct{ light, dark, dashes string }{
	{"#0b62a8", "#6cb4f5", ""},
	{"#b8480a", "#ff9d5c", "7 4"},
	{"#00795a", "#3ad1a3", "2 4"},
	{"#9b3d79", "#e9a3cf", "10 3 2 3"},
	{"#7a6200", "#e6c84a", "4 2"},
	{"#555555", "#bbbbbb", "12 5"},
}

// SVG writes the chart. The error is the writer's.
func (c Chart) SVG(w io.Writer) error {
	x, y := c.scales()
	height := c.height()
	b := &strings.Builder{}
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %s %s\" width=\"%s\" height=\"%s\" role=\"img\" aria-label=\"%s\">\n",
		short(chartWidth), short(height), short(chartWidth), short(height), escape(c.Title))
	writeStyle(b)
	fmt.Fprintf(b, "<rect class=\"page\" width=\"%s\" height=\"%s\"/>\n", short(chartWidth), short(height))
	writeText(b, "title", chartWidth/2, 26, "middle", c.Title)
	c.writeAxes(b, x, y)
	for i := range c.Series {
		c.Series[i].write(b, i, x, y)
		c.Series[i].writeLegend(b, i)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// height has room for the legend.
func (c Chart) height() float64 {
	return chartHeight + legendRow*float64((len(c.Series)-1)/legendColumns)
}

func writeStyle(b *strings.Builder) {
	var light, dark strings.Builder
	for i, c := range colours {
		fmt.Fprintf(&light, ".s%d{color:%s}", i, c.light)
		fmt.Fprintf(&dark, ".s%d{color:%s}", i, c.dark)
	}
	fmt.Fprintf(b, "<style>\n"+
		"text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:15px;font-weight:600}.page{fill:#fff}.grid{stroke:#e2e2e2}.axis{stroke:#888}\n"+
		".line{fill:none;stroke:currentColor;stroke-width:2}.mark{fill:currentColor;stroke:currentColor;stroke-width:2}.doubtful{fill:#fff}\n%s\n"+
		"@media(prefers-color-scheme:dark){text{fill:#ddd}.page{fill:#161b22}.grid{stroke:#30363d}.axis{stroke:#8b949e}.doubtful{fill:#161b22}\n%s}\n</style>\n",
		light.String(), dark.String())
}

func (c Chart) writeAxes(b *strings.Builder, x, y scale) {
	for _, tick := range x.ticks() {
		at := x.place(tick)
		writeStroke(b, "grid", at, plotTop, at, plotBottom)
		writeText(b, "", at, plotBottom+18, "middle", Number(tick))
	}
	for _, tick := range y.ticks() {
		at := y.place(tick)
		writeStroke(b, "grid", plotLeft, at, plotRight, at)
		writeText(b, "", plotLeft-8, at+4, "end", Number(tick))
	}
	writeStroke(b, "axis", plotLeft, plotBottom, plotRight, plotBottom)
	writeStroke(b, "axis", plotLeft, plotTop, plotLeft, plotBottom)
	middle := (plotTop + plotBottom) / 2
	writeText(b, "", (plotLeft+plotRight)/2, plotBottom+40, "middle", c.X.Label)
	fmt.Fprintf(b, "<text x=\"18\" y=\"%s\" text-anchor=\"middle\" transform=\"rotate(-90 18 %s)\">%s</text>\n",
		short(middle), short(middle), escape(c.Y.Label))
}

func (l *Line) write(b *strings.Builder, index int, x, y scale) {
	index %= len(colours)
	fmt.Fprintf(b, "<g class=\"s%d\">\n", index)
	var points []string
	for _, d := range l.Points {
		if x.shows(d.X) && y.shows(d.Y) {
			points = append(points, short(x.place(d.X))+","+short(y.place(d.Y)))
		}
	}
	if !l.Loose && len(points) > 1 {
		fmt.Fprintf(b, "<polyline class=\"line\"%s points=\"%s\"/>\n", dashes(index), strings.Join(points, " "))
	}
	for _, d := range l.Points {
		if x.shows(d.X) && y.shows(d.Y) {
			writeMark(b, index, x.place(d.X), y.place(d.Y), d.Doubtful, fmt.Sprintf("%s: %s, %s%s", l.Name, Number(d.X), Number(d.Y), d.Note))
		}
	}
	b.WriteString("</g>\n")
}

func (l *Line) writeLegend(b *strings.Builder, index int) {
	left := plotLeft + float64(index%legendColumns)*(plotRight-plotLeft)/legendColumns
	top := legendTop + float64(index/legendColumns)*legendRow
	index %= len(colours)
	fmt.Fprintf(b, "<g class=\"s%d\">", index)
	if !l.Loose {
		fmt.Fprintf(b, "<path class=\"line\"%s d=\"M%s %sh28\"/>", dashes(index), short(left), short(top))
	}
	writeMark(b, index, left+14, top, false, l.Name)
	b.WriteString("</g>\n")
	writeText(b, "", left+36, top+4, "start", l.Name)
}

func dashes(index int) string {
	if d := colours[index].dashes; d != "" {
		return ` stroke-dasharray="` + d + `"`
	}
	return ""
}

// writeMark draws a circle, a square or a diamond.
func writeMark(b *strings.Builder, index int, x, y float64, doubtful bool, title string) {
	class := "mark"
	if doubtful {
		class = "mark doubtful"
	}
	const r = markRadius
	switch index % 3 {
	case 0:
		fmt.Fprintf(b, "<circle class=\"%s\" cx=\"%s\" cy=\"%s\" r=\"%s\">", class, short(x), short(y), short(r))
	case 1:
		fmt.Fprintf(b, "<path class=\"%s\" d=\"M%s %sh%sv%sh%sz\">", class, short(x-r), short(y-r), short(2*r), short(2*r), short(-2*r))
	default:
		fmt.Fprintf(b, "<path class=\"%s\" d=\"M%s %sl%s %sl%s %sl%s %sz\">", class,
			short(x), short(y-r), short(r), short(r), short(-r), short(r), short(-r), short(-r))
	}
	fmt.Fprintf(b, "<title>%s</title></%s>\n", escape(title), map[bool]string{true: "circle", false: "path"}[index%3 == 0])
}

func writeStroke(b *strings.Builder, class string, x1, y1, x2, y2 float64) {
	fmt.Fprintf(b, "<line class=\"%s\" x1=\"%s\" y1=\"%s\" x2=\"%s\" y2=\"%s\"/>\n", class, short(x1), short(y1), short(x2), short(y2))
}

func writeText(b *strings.Builder, class string, x, y float64, anchor, text string) {
	if class != "" {
		class = ` class="` + class + `"`
	}
	fmt.Fprintf(b, "<text%s x=\"%s\" y=\"%s\" text-anchor=\"%s\">%s</text>\n", class, short(x), short(y), anchor, escape(text))
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder takes everything
	return b.String()
}

// short writes a coordinate to a tenth.
func short(v float64) string { return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) }

// Number writes a figure with three digits that say something, and thousands apart.
func Number(v float64) string {
	text := strconv.FormatFloat(v, 'f', max(2-int(math.Floor(math.Log10(max(math.Abs(v), 1e-9)))), 0), 64)
	if strings.Contains(text, ".") {
		return strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// scales returns the axes that hold all points.
func (c Chart) scales() (x, y scale) {
	x, y = newScale(c.X.Log, plotLeft, plotRight), newScale(c.Y.Log, plotBottom, plotTop)
	for _, l := range c.Series {
		for _, d := range l.Points {
			if x.shows(d.X) && y.shows(d.Y) {
				x.include(d.X)
				y.include(d.Y)
			}
		}
	}
	x.round()
	y.round()
	return x, y
}

// A scale places figures on an axis.
type scale struct {
	log      bool
	from, to float64 // coordinates
	low, top float64 // figures; logarithms of them if log
	step     float64 // between ticks, if not log
	any      bool
}

func newScale(log bool, from, to float64) scale { return scale{log: log, from: from, to: to} }

// shows reports whether the axis has a place for v.
func (s *scale) shows(v float64) bool {
	return !math.IsNaN(v) && !math.IsInf(v, 0) && (v > 0 || !s.log)
}

func (s *scale) include(v float64) {
	if s.log {
		v = math.Log10(v)
	}
	if !s.any {
		s.any, s.low, s.top = true, v, v
		if !s.log {
			s.low, s.top = min(v, 0), max(v, 0)
		}
	}
	s.low, s.top = min(s.low, v), max(s.top, v)
}

// round extends the scale to where ticks are.
func (s *scale) round() {
	if s.top == s.low {
		s.top = s.low + 1
	}
	if s.log {
		s.low, s.top = roundLog(s.low, s.top)
		return
	}
	s.step = niceStep((s.top - s.low) / 6)
	s.low, s.top = math.Floor(s.low/s.step)*s.step, math.Ceil(s.top/s.step)*s.step
}

// logSlack keeps the logarithm of 1000 from being taken for more than 3.
const logSlack = 1e-9

// roundLog extends logarithms to the nearest 1, 2 or 5 of a decade.
func roundLog(low, top float64) (roundLow, roundTop float64) {
	roundLow, roundTop = math.Floor(low+logSlack), math.Ceil(top-logSlack)
	for _, digit := range []float64{2, 5} {
		if mark := math.Floor(low+logSlack) + math.Log10(digit); mark <= low+logSlack {
			roundLow = mark
		}
		if mark := math.Ceil(top-logSlack) - 1 + math.Log10(10/digit); mark >= top-logSlack {
			roundTop = mark
		}
	}
	return roundLow, roundTop
}

// niceStep returns the least of 1, 2 and 5 times a power of ten that is at least v.
func niceStep(v float64) float64 {
	power := math.Pow(10, math.Floor(math.Log10(v)))
	for _, digit := range []float64{1, 2, 5} {
		if digit*power >= v {
			return digit * power
		}
	}
	return 10 * power
}

// ticks returns the figures that are written at the axis: of logarithms every
// decade and, if there are few, 2 and 5 of each.
func (s *scale) ticks() []float64 {
	var all []float64
	if !s.log {
		for i := 0; s.low+float64(i)*s.step <= s.top+s.step/2; i++ {
			all = append(all, s.low+float64(i)*s.step)
		}
		return all
	}
	digits := []float64{1, 2, 5}
	if s.top-s.low > 2.5 {
		digits = digits[:1]
	}
	for decade := math.Floor(s.low); decade <= s.top; decade++ {
		for _, digit := range digits {
			if at := decade + math.Log10(digit); at >= s.low-logSlack && at <= s.top+logSlack {
				all = append(all, digit*math.Pow(10, decade))
			}
		}
	}
	return all
}

func (s *scale) place(v float64) float64 {
	if s.log {
		v = math.Log10(v)
	}
	return s.from + (v-s.low)/(s.top-s.low)*(s.to-s.from)
}
