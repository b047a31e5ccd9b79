package file

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkOneChangeInALargeFile changes one of 10,000 documents.
func BenchmarkOneChangeInALargeFile(b *testing.B) {
	var text strings.Builder
	for i := range 10_000 {
		text.WriteString("---\n" + serviceEntry(fmt.Sprintf("se-%d", i), fmt.Sprintf("h%d.example", i)))
	}
	rest := text.String()
	s := newScanner("east")
	state := s.parse("a.yaml", []byte(rest), nil)
	b.SetBytes(int64(len(rest)))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		state = s.parse("a.yaml", []byte(serviceEntry("changing", fmt.Sprintf("h%d.example", n))+rest), state)
		if len(state.good) != 10_001 || len(state.problems) > 0 {
			b.Fatalf("%d resources, problems %v", len(state.good), state.problems)
		}
	}
}
