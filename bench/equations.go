package main

import "math"

// equations are linear, and have more rows than unknowns.
type equations struct {
	rows [][]float64 // factors of the unknowns, and the sum
}

// add adds a row. Its error counts as a share of whole.
func (e *equations) add(sum, whole float64, factors ...float64) {
	row := make([]float64, 0, len(factors)+1)
	for _, f := range append(factors, sum) {
		row = append(row, f/whole)
	}
	e.rows = append(e.rows, row)
}

// solve returns the unknowns for which the sum of squared errors is least, by the normal equations.
// An unknown that no row tells anything of is zero.
func (e equations) solve() []float64 {
	if len(e.rows) == 0 {
		return nil
	}
	n := len(e.rows[0]) - 1
	scale := make([]float64, n) // factors are of very different size
	for i := range scale {
		for _, row := range e.rows {
			scale[i] = max(scale[i], math.Abs(row[i]))
		}
		if scale[i] == 0 {
			scale[i] = 1
		}
	}
	normal := make([][]float64, n)
	for i := range normal {
		normal[i] = make([]float64, n+1)
		for _, row := range e.rows {
			for j := range n {
				normal[i][j] += row[i] / scale[i] * row[j] / scale[j]
			}
			normal[i][n] += row[i] / scale[i] * row[n]
		}
	}
	unknowns := eliminate(normal)
	for i := range unknowns {
		unknowns[i] /= scale[i]
	}
	return unknowns
}

// eliminate solves as many equations as there are unknowns, after Gauss and Jordan.
func eliminate(m [][]float64) []float64 {
	const nothing = 1e-12
	n := len(m)
	for col := range n {
		best := col
		for row := col + 1; row < n; row++ {
			if math.Abs(m[row][col]) > math.Abs(m[best][col]) {
				best = row
			}
		}
		m[col], m[best] = m[best], m[col]
		if math.Abs(m[col][col]) < nothing {
			continue
		}
		for row := range n {
			if row == col {
				continue
			}
			by := m[row][col] / m[col][col]
			for k := col; k <= n; k++ {
				m[row][k] -= by * m[col][k]
			}
		}
	}
	out := make([]float64, n)
	for i := range n {
		if math.Abs(m[i][i]) >= nothing {
			out[i] = m[i][n] / m[i][i]
		}
	}
	return out
}
