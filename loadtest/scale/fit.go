package main

import "math"

// A fit is the line intercept + slope·x that comes nearest to some points: the
// least squares of the residuals, each as a share of its figure, so that points of
// a thousandfold size do not drown the small ones.
type fit struct {
	intercept, slope float64
	points           int
	rms, worst       float64 // of the residuals, as shares of the figures
}

// fitLine returns the fit, and whether there is one: it takes two different x. What
// is not positive has no share and is left out.
func fitLine(x, y []float64) (fit, bool) {
	var w, wx, wy, wxx, wxy float64
	for i := range x {
		if y[i] <= 0 {
			continue
		}
		weight := 1 / (y[i] * y[i])
		w += weight
		wx += weight * x[i]
		wy += weight * y[i]
		wxx += weight * x[i] * x[i]
		wxy += weight * x[i] * y[i]
	}
	determinant := w*wxx - wx*wx
	if w == 0 || determinant <= 1e-12*w*wxx {
		return fit{}, false
	}
	f := fit{slope: (w*wxy - wx*wy) / determinant}
	f.intercept = (wy - f.slope*wx) / w
	f.judge(x, y)
	return f, true
}

func (f *fit) judge(x, y []float64) {
	var squares float64
	for i := range x {
		if y[i] <= 0 {
			continue
		}
		residual := math.Abs(f.at(x[i])-y[i]) / y[i]
		f.points++
		squares += residual * residual
		f.worst = max(f.worst, residual)
	}
	f.rms = math.Sqrt(squares / float64(f.points))
}

func (f *fit) at(x float64) float64 { return f.intercept + f.slope*x }
