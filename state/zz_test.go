package state

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

func TestZZ(t *testing.T) {
	fs, _ := os.ReadDir("testdata/fuzz/FuzzFile")
	b, _ := os.ReadFile("testdata/fuzz/FuzzFile/" + fs[0].Name())
	l := strings.Split(string(b), "\n")[1]
	s, err := strconv.Unquote(l[len("[]byte(") : len(l)-1])
	must(t, err)
	p := t.TempDir() + "/x"
	must(t, os.WriteFile(p, []byte(s), 0o600))
	f, _ := os.Open(p)
	defer f.Close()
	tr, err := openTree(f, int64(len(s)))
	must(t, err)
	fmt.Println("root", tr.root, tr.pages)
	var dump func(ind string, b *bucket) error
	dump = func(ind string, b *bucket) error {
		return tr.walkBucket(b, func(k, v []byte, sub *bucket) error {
			if len(k) > 60 {
				k = k[:60]
			}
			if sub == nil {
				fmt.Printf("%s%q %d\n", ind, k, len(v))
				return nil
			}
			fmt.Printf("%s%q -> page %d inline %d\n", ind, k, sub.page, len(sub.inline))
			return dump(ind+"  ", sub)
		})
	}
	fmt.Println(dump("", &bucket{page: tr.root}))
	fmt.Println(tr.seen)
}
