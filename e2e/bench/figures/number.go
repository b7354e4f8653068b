package main

import (
	"math"
	"strconv"
	"strings"
)

// unit is what a metric is counted in: what follows its last hyphen. For how many
// it was counted ("s/1000polls") is for the figure's text to say.
func unit(metric string) string {
	unit, _, _ := strings.Cut(metric[strings.LastIndexByte(metric, '-')+1:], "/1000")
	return unit
}

// plain writes a number with about three digits that mean something.
func plain(v float64) string {
	digits := 2
	switch a := math.Abs(v); {
	case a >= 99.95 || math.Abs(a-math.Round(a)) < 1e-9:
		digits = 0
	case a >= 9.995:
		digits = 1
	case a < 0.0995:
		digits = 4
	case a < 0.995:
		digits = 3
	}
	return thousands(strconv.FormatFloat(v, 'f', digits, 64))
}

// exact writes a number that somebody chose.
func exact(v float64) string { return thousands(strconv.FormatFloat(v, 'f', -1, 64)) }

// thousands puts a comma before each three digits of the whole part.
func thousands(number string) string {
	whole, fraction, _ := strings.Cut(number, ".")
	sign := ""
	if strings.HasPrefix(whole, "-") {
		sign, whole = "−", whole[1:]
	}
	for i := len(whole) - 3; i > 0; i -= 3 {
		whole = whole[:i] + "," + whole[i:]
	}
	if fraction != "" {
		fraction = "." + fraction
	}
	return sign + whole + fraction
}

// signed is plain with a plus before what is not below zero.
func signed(v float64) string {
	if v < 0 {
		return plain(v)
	}
	return "+" + plain(v)
}

// in puts a unit after a number: "3 ms", "3/s".
func in(number, unit string) string {
	if strings.HasPrefix(unit, "/") {
		return number + unit
	}
	return number + " " + unit
}
