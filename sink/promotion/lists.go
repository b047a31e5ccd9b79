package promotion

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/zeebo/xxh3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshrelay/mirror"
)

// perList bounds the digests of a list: 512 KiB in base64.
const perList = 512 << 10 / 4 * 3 / 8

// maxLists bounds the lists. One is more than needed, because each addition may leave a list of a few.
const maxLists = MaxObjects/perList + 2

const digests = "digests" // key of a list, with 8 bytes for each object

// digest tells an object from all others that were or will be in the cluster.
func digest(k mirror.Kind, m metav1.ObjectMeta) uint64 {
	return xxh3.HashString(strings.Join([]string{k.Group, k.Kind, m.Namespace, m.Name, string(m.UID)}, "\x00"))
}

// lists returns all lists.
func (r *run) lists(ctx context.Context) (all []*configMap, err error) {
	for i := range maxLists {
		m, err := readMap(ctx, r.Conn(), r.Namespace, r.listName(i))
		if err != nil || m == nil {
			return all, err
		}
		if b, ok := m.BinaryData[digests]; !ok || len(b)%8 != 0 {
			return nil, fmt.Errorf("ConfigMap %s/%s is not a list of sink %s: rename it, or restore what was in it", r.Namespace, m.Metadata.Name, r.Sink)
		}
		all = append(all, m)
	}
	return all, nil
}

func (r *run) listName(i int) string { return fmt.Sprintf("%s-%d", ObjectName(r.Sink), i) }

// listed returns the digests of lists.
func listed(all []*configMap) map[uint64]bool {
	set := map[uint64]bool{}
	for _, m := range all {
		for b := m.BinaryData[digests]; len(b) > 0; b = b[8:] {
			set[binary.LittleEndian.Uint64(b)] = true
		}
	}
	return set
}

// enlist adds objects to the lists, and returns how many objects the lists have then. It removes none: two
// commands may run at the same time.
func (r *run) enlist(ctx context.Context, found map[uint64]object) (n int, err error) {
	err = r.try(ctx, func() error {
		if err := r.guard(ctx); err != nil {
			return err
		}
		all, err := r.lists(ctx)
		if err != nil {
			return err
		}
		set, more := listed(all), []uint64{}
		for d := range found {
			if !set[d] {
				more = append(more, d)
			}
		}
		if n = len(set) + len(more); n > MaxObjects {
			return fmt.Errorf("sink %s has more than %d objects with those that were promoted before: run relay sink adopt %[1]s, and split the sink", r.Sink, MaxObjects)
		}
		for i := 0; len(more) > 0; i++ {
			if i == len(all) {
				all = append(all, newConfigMap(r.Namespace, r.listName(i)))
			}
			m := all[i]
			b := m.BinaryData[digests]
			room := min(perList-len(b)/8, len(more))
			if room <= 0 {
				continue
			}
			for _, d := range more[:room] {
				b = binary.LittleEndian.AppendUint64(b, d)
			}
			m.BinaryData, more = map[string][]byte{digests: b}, more[room:]
			if err := m.save(ctx, r.Conn()); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}
