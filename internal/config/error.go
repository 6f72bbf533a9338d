package config

import "strings"

// An Error is one thing wrong with the configuration.
type Error struct {
	Where  string // pubsubd.yaml:3, environment variable PUBSUBD_…, flag --…; empty if nobody said it
	Key    string // the setting, or the source if that itself is wrong; may be empty
	Reason string // what is wrong, and what would do

	with string // another setting that has to do with it, whose origin counts if Key is a default
}

// Error returns "where: key reason".
func (e *Error) Error() string {
	said := strings.TrimSpace(e.Key + " " + e.Reason)
	if e.Where == "" {
		return said
	}
	return e.Where + ": " + said
}

// isAbout reports whether e is about the setting of that key, or about its section.
func (e *Error) isAbout(key string) bool {
	return e.Key != "" && strings.HasPrefix(key+".", e.Key+".")
}

// didYouMean completes the error of an unknown name with the nearest known one,
// if one is near, or one that ends or begins so: history.age for age. The prefix, which all
// of them have, and case count for nothing.
func didYouMean(name, prefix string, known []string) string {
	name = strings.ToLower(strings.TrimPrefix(name, prefix))
	best, bestAt := "", max(2, len(name)/3)+1
	for _, k := range known {
		low := strings.ToLower(strings.TrimPrefix(k, prefix))
		d := editDistance(name, low)
		if isPart(name, low) {
			d = 1
		}
		if d < bestAt {
			best, bestAt = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// isPart reports whether whole is a longer name that ends in name, or goes on after it.
func isPart(name, whole string) bool {
	const marks = ".-_"
	before, ends := strings.CutSuffix(whole, name)
	after, begins := strings.CutPrefix(whole, name)
	return name != "" && (ends && strings.TrimRight(before, marks) != before || begins && strings.TrimLeft(after, marks) != after)
}

// editDistance returns how many bytes must be put in, taken out or replaced to
// make a into b (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // distances of a's beginning so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
