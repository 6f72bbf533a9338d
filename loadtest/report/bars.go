package report

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Bars are figures of things that have no order, in groups, as lying bars: an SVG
// without scripts, as a Chart is one.
type Bars struct {
	Title  string
	Unit   string   // behind each figure
	Log    bool     // the bars grow with the logarithm, from the decade below the least
	Series []string // of every group, in order
	Groups []Group

	// Spreads are those of each group's figures; none, or as many.
	Spreads [][]Spread
}

// A Group has a figure for each series; one that is not a positive number is left
// out.
type Group struct {
	Name   string
	Values []float64
}

// A Spread is from where to where a figure goes, if that is known; a doubtful
// figure's bar is hollow.
type Spread struct {
	Low, High float64
	Doubtful  bool
}

// Where things are, in the SVG's own units.
const (
	barsLeft, barsRight = 236.0, 630.0
	barsTop             = 48.0
	barHeight           = 13.0
	groupGap            = 12.0
)

// SVG writes the bars. The error is the writer's.
func (c Bars) SVG(w io.Writer) error {
	group := float64(len(c.Series))*barHeight + groupGap
	bottom := barsTop + float64(len(c.Groups))*group
	legend := bottom + legendRow
	if c.Log {
		legend += legendRow
	}
	height := legend + legendRow*float64((len(c.Series)+legendColumns-1)/legendColumns)
	b := &strings.Builder{}
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %s %s\" width=\"%s\" height=\"%s\" role=\"img\" aria-label=\"%s\">\n",
		short(chartWidth), short(height), short(chartWidth), short(height), escape(c.Title))
	writeStyle(b)
	fmt.Fprintf(b, "<style>.bar{fill:currentColor}%s</style>\n<rect class=\"page\" width=\"%s\" height=\"%s\"/>\n", c.hollow(), short(chartWidth), short(height))
	writeText(b, "title", chartWidth/2, 26, "middle", c.Title)
	x := c.scale()
	c.writeTicks(b, x, bottom)
	for i, g := range c.Groups {
		var spreads []Spread
		if i < len(c.Spreads) {
			spreads = c.Spreads[i]
		}
		c.writeGroup(b, g, spreads, barsTop+float64(i)*group, x)
	}
	for i, name := range c.Series {
		writeBarLegend(b, i, legend, name)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// hollow is the style of doubtful bars, if there are any.
func (c Bars) hollow() string {
	for _, group := range c.Spreads {
		for _, s := range group {
			if s.Doubtful {
				return ".hollow{fill-opacity:.25;stroke:currentColor}"
			}
		}
	}
	return ""
}

// scale holds all bars: from 0, or from the decade below the least.
func (c Bars) scale() scale {
	x := newScale(c.Log, barsLeft, barsRight)
	if !c.Log {
		x.include(math.SmallestNonzeroFloat64)
	}
	for _, g := range c.Groups {
		for _, v := range g.Values {
			if isBar(v) {
				x.include(v)
			}
		}
	}
	for _, group := range c.Spreads {
		for _, s := range group {
			if isBar(s.High) {
				x.include(s.High)
			}
		}
	}
	if c.Log {
		x.low = math.Floor(x.low - logSlack)
		x.top = max(x.top, x.low+1)
	}
	return x
}

func isBar(v float64) bool { return v > 0 && !math.IsInf(v, 0) }

// writeTicks writes the decades of a logarithmic scale; a linear one has none, since
// each bar has its figure.
func (c Bars) writeTicks(b *strings.Builder, x scale, bottom float64) {
	for decade := x.low; c.Log && decade <= x.top; decade++ {
		at := x.place(math.Pow(10, decade))
		writeStroke(b, "grid", at, barsTop-2, at, bottom-groupGap)
		writeText(b, "", at, bottom+4, "middle", Number(math.Pow(10, decade)))
	}
}

func (c Bars) writeGroup(b *strings.Builder, g Group, spreads []Spread, top float64, x scale) {
	middle := top + float64(len(c.Series))*barHeight/2
	writeText(b, "", barsLeft-8, middle+4, "end", g.Name)
	for i, v := range g.Values {
		if isBar(v) {
			var s Spread
			if i < len(spreads) {
				s = spreads[i]
			}
			c.writeBar(b, i, top+float64(i)*barHeight, v, s, x)
		}
	}
	writeStroke(b, "axis", barsLeft, top-2, barsLeft, top+float64(len(c.Series))*barHeight)
}

func (c Bars) writeBar(b *strings.Builder, series int, y, v float64, s Spread, x scale) {
	class, end := "bar", x.place(v)
	if s.Doubtful {
		class = "bar hollow"
	}
	fmt.Fprintf(b, "<g class=\"s%d\"><rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>%s</title></rect></g>\n",
		series%len(colours), class, short(barsLeft), short(y), short(end-barsLeft), short(barHeight-2), escape(c.Series[series]))
	if isBar(s.Low) && isBar(s.High) {
		middle := y + barHeight/2 - 1
		writeStroke(b, "axis", x.place(max(s.Low, math.Pow(10, x.low))), middle, x.place(s.High), middle)
		end = max(end, x.place(s.High))
	}
	writeText(b, "", end+6, y+barHeight-3, "start", Number(v)+c.Unit)
}

func writeBarLegend(b *strings.Builder, index int, top float64, name string) {
	left := plotLeft + float64(index%legendColumns)*(plotRight-plotLeft)/legendColumns
	y := top + float64(index/legendColumns)*legendRow
	fmt.Fprintf(b, "<g class=\"s%d\"><rect class=\"bar\" x=\"%s\" y=\"%s\" width=\"28\" height=\"%s\"/></g>\n",
		index%len(colours), short(left), short(y-barHeight/2), short(barHeight-2))
	writeText(b, "", left+36, y+4, "start", name)
}
