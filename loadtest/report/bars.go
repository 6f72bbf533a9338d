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
	Series []string // of every group, in order
	Groups []Group
}

// A Group has a figure for each series; one that is not a positive number is left
// out.
type Group struct {
	Name   string
	Values []float64
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
	legend := barsTop + float64(len(c.Groups))*group + legendRow
	height := legend + legendRow*float64((len(c.Series)+legendColumns-1)/legendColumns)
	b := &strings.Builder{}
	fmt.Fprintf(b, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %s %s\" width=\"%s\" height=\"%s\" role=\"img\" aria-label=\"%s\">\n",
		short(chartWidth), short(height), short(chartWidth), short(height), escape(c.Title))
	writeStyle(b)
	fmt.Fprintf(b, "<style>.bar{fill:currentColor}</style>\n<rect class=\"page\" width=\"%s\" height=\"%s\"/>\n", short(chartWidth), short(height))
	writeText(b, "title", chartWidth/2, 26, "middle", c.Title)
	most := c.most()
	for i, g := range c.Groups {
		c.writeGroup(b, g, barsTop+float64(i)*group, most)
	}
	for i, name := range c.Series {
		writeBarLegend(b, i, legend, name)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// most is the longest bar's figure, at least a little.
func (c Bars) most() float64 {
	most := math.SmallestNonzeroFloat64
	for _, g := range c.Groups {
		for _, v := range g.Values {
			if isBar(v) {
				most = max(most, v)
			}
		}
	}
	return most
}

func isBar(v float64) bool { return v > 0 && !math.IsInf(v, 0) }

func (c Bars) writeGroup(b *strings.Builder, g Group, top, most float64) {
	middle := top + float64(len(c.Series))*barHeight/2
	writeText(b, "", barsLeft-8, middle+4, "end", g.Name)
	for i, v := range g.Values {
		if isBar(v) {
			y, width := top+float64(i)*barHeight, v/most*(barsRight-barsLeft)
			fmt.Fprintf(b, "<g class=\"s%d\"><rect class=\"bar\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\"><title>%s</title></rect></g>\n",
				i%len(colours), short(barsLeft), short(y), short(width), short(barHeight-2), escape(c.Series[i]))
			writeText(b, "", barsLeft+width+6, y+barHeight-3, "start", Number(v)+c.Unit)
		}
	}
	writeStroke(b, "axis", barsLeft, top-2, barsLeft, top+float64(len(c.Series))*barHeight)
}

func writeBarLegend(b *strings.Builder, index int, top float64, name string) {
	left := plotLeft + float64(index%legendColumns)*(plotRight-plotLeft)/legendColumns
	y := top + float64(index/legendColumns)*legendRow
	fmt.Fprintf(b, "<g class=\"s%d\"><rect class=\"bar\" x=\"%s\" y=\"%s\" width=\"28\" height=\"%s\"/></g>\n",
		index%len(colours), short(left), short(y-barHeight/2), short(barHeight-2))
	writeText(b, "", left+36, y+4, "start", name)
}
