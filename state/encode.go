package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/zeebo/xxh3"
	"google.golang.org/protobuf/encoding/protowire"

	"meshrelay/mirror"
)

// Values on disk are protobuf messages, written and read by hand, behind a checksum. What a
// reader does not know it skips: a later version may add fields. Fields are never given
// another meaning; what can not be said by adding a field is a new format version.
//
// Keys of resources are the length of the kind as a varint, the kind as "group/Kind", and
// the full name, so that a kind's resources stand together.

// sumLen is the length of the checksum before each value. It covers the key, too.
const sumLen = 8

var (
	errSum   = errors.New("its checksum does not match")
	errShort = errors.New("it is too short")
)

// seal puts the checksum before a value, whose first sumLen bytes are left free for it.
func seal(key, value []byte) (sum uint64) {
	sum = xxh3.HashSeed(value[sumLen:], xxh3.Hash(key))
	binary.LittleEndian.PutUint64(value, sum)
	return sum
}

// unseal checks a value and returns what is in it.
func unseal(key, value []byte) (payload []byte, sum uint64, err error) {
	if len(value) < sumLen {
		return nil, 0, errShort
	}
	sum = sumOf(value)
	if sum != xxh3.HashSeed(value[sumLen:], xxh3.Hash(key)) {
		return nil, 0, errSum
	}
	return value[sumLen:], sum, nil
}

func sumOf(value []byte) uint64 {
	if len(value) < sumLen {
		return 0
	}
	return binary.LittleEndian.Uint64(value)
}

// appendKey appends the key of a resource.
func appendKey(b []byte, k mirror.Key) []byte {
	n := len(k.Kind.Group) + 1 + len(k.Kind.Kind)
	b = protowire.AppendVarint(b, uint64(n))
	b = append(append(append(b, k.Kind.Group...), '/'), k.Kind.Kind...)
	if k.Kind != mirror.MeshConfig {
		b = append(append(b, k.Namespace...), '/')
	}
	return append(b, k.Name...)
}

// parseKey is the inverse of appendKey.
func parseKey(b []byte) (mirror.Key, error) {
	n, m := protowire.ConsumeVarint(b)
	if m < 0 || n > uint64(len(b)-m) {
		return mirror.Key{}, errors.New("no key of a resource")
	}
	group, kind, ok := strings.Cut(string(b[m:m+int(n)]), "/")
	if !ok {
		return mirror.Key{}, errors.New("no kind in the key of a resource")
	}
	k := mirror.Key{Kind: mirror.Kind{Group: group, Kind: kind}}
	full := string(b[m+int(n):])
	if k.Kind == mirror.MeshConfig {
		k.Name = full
		return k, nil
	}
	var err error
	k.Namespace, k.Name, err = mirror.ParseFullName(full)
	return k, err
}

// fields walks the top level of a message.
func fields(b []byte, bytes func(protowire.Number, []byte) error, number func(protowire.Number, uint64)) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch typ {
		case protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			if err := bytes(num, v); err != nil {
				return err
			}
			b = b[n:]
		case protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			number(num, v)
			b = b[n:]
		case protowire.Fixed64Type:
			v, n := protowire.ConsumeFixed64(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			number(num, v)
			b = b[n:]
		default:
			n := protowire.ConsumeFieldValue(num, typ, b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
		}
	}
	return nil
}

func appendText(b []byte, num protowire.Number, s string) []byte {
	if s == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, num, protowire.BytesType), s)
}

func appendBytes(b []byte, num protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, num, protowire.BytesType), v)
}

func appendNumber(b []byte, num protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), v)
}

func appendFixed(b []byte, num protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, num, protowire.Fixed64Type), v)
}

// appendTime appends a point in time, nothing when it is zero.
func appendTime(b []byte, num protowire.Number, t time.Time) []byte {
	if t.IsZero() {
		return b
	}
	var v []byte
	v = appendNumber(v, 1, protowire.EncodeZigZag(t.Unix()))
	v = appendNumber(v, 2, uint64(t.Nanosecond()))
	return appendBytes(b, num, v)
}

func parseTime(b []byte) (time.Time, error) {
	var seconds int64
	var nanos uint64
	err := fields(b, skip, func(num protowire.Number, v uint64) {
		switch num {
		case 1:
			seconds = protowire.DecodeZigZag(v)
		case 2:
			nanos = min(v, 999_999_999)
		}
	})
	return time.Unix(seconds, int64(nanos)).UTC(), err
}

func skip(protowire.Number, []byte) error { return nil }

// Numbers of the fields of a record, and of the resources within it.
const (
	recordResource = 1
	recordOriginal = 2
	recordTypeURL  = 3
	recordVersion  = 4
	recordHash     = 5
	recordAt       = 6
	recordDigest   = 7

	resourceAny           = 1
	resourceSource        = 2
	resourceCluster       = 3
	resourceSourceVersion = 4
	resourceKind          = 5 // "group/Kind", if it is not that of the key
)

// appendRecord appends a record that stands under a key.
func appendRecord(b []byte, key mirror.Key, r *Record) []byte {
	b = appendResource(b, recordResource, key.Kind, r.Resource)
	if r.Original != nil {
		b = appendResource(b, recordOriginal, key.Kind, r.Original)
	}
	b = appendText(b, recordTypeURL, r.TypeURL)
	b = appendText(b, recordVersion, r.Version)
	if r.Hash != [16]byte{} {
		b = appendBytes(b, recordHash, r.Hash[:])
	}
	b = appendTime(b, recordAt, r.At.Truncate(time.Second))
	digest := r.Resource.Digest()
	return appendBytes(b, recordDigest, digest[:])
}

func appendResource(b []byte, num protowire.Number, kind mirror.Kind, r *mirror.Resource) []byte {
	kindText := ""
	if k := r.Kind(); k != kind {
		kindText = k.Group + "/" + k.Kind
	}
	size := 0
	for _, n := range []int{len(r.Any()), len(r.Source()), len(r.Cluster()), len(r.SourceVersion()), len(kindText)} {
		if n > 0 {
			size += 1 + protowire.SizeBytes(n)
		}
	}
	b = protowire.AppendVarint(protowire.AppendTag(b, num, protowire.BytesType), uint64(size))
	b = appendBytes(b, resourceAny, r.Any())
	b = appendText(b, resourceSource, r.Source())
	b = appendText(b, resourceCluster, r.Cluster())
	b = appendText(b, resourceSourceVersion, r.SourceVersion())
	return appendText(b, resourceKind, kindText)
}

// parseRecord is the inverse of appendRecord. It copies b.
func parseRecord(key mirror.Key, b []byte) (r Record, err error) {
	err = fields(b, func(num protowire.Number, v []byte) (err error) {
		switch num {
		case recordResource:
			r.Resource, err = parseResource(key.Kind, v)
			if err == nil && r.Resource.Key() != key {
				err = fmt.Errorf("it is of %s", r.Resource.Key())
			}
		case recordOriginal:
			if r.Original, err = parseResource(key.Kind, v); err != nil {
				err = fmt.Errorf("as the source has it: %w", err)
			}
		case recordTypeURL:
			r.TypeURL = string(v)
		case recordVersion:
			r.Version = string(v)
		case recordHash:
			copy(r.Hash[:], v)
		case recordAt:
			r.At, err = parseTime(v)
		}
		return err
	}, func(protowire.Number, uint64) {})
	if err == nil && r.Resource == nil {
		err = errors.New("there is no resource in it")
	}
	if r.Resource != nil && r.Version == r.Resource.SourceVersion() {
		r.Version = r.Resource.SourceVersion() // held once
	}
	return r, err
}

func parseResource(kind mirror.Kind, b []byte) (*mirror.Resource, error) {
	var data []byte
	var source, cluster, version string
	err := fields(b, func(num protowire.Number, v []byte) error {
		switch num {
		case resourceAny:
			data = v
		case resourceSource:
			source = string(v)
		case resourceCluster:
			cluster = string(v)
		case resourceSourceVersion:
			version = string(v)
		case resourceKind:
			kind.Group, kind.Kind, _ = strings.Cut(string(v), "/")
		}
		return nil
	}, func(protowire.Number, uint64) {})
	if err != nil {
		return nil, err
	}
	return mirror.Restore(kind, data, source, cluster, version)
}

// digestOf returns what tells the content of an encoded record from another's.
func digestOf(record []byte) (digest [16]byte) {
	// What does not parse has no digest, and so differs from what has.
	_ = fields(record, func(num protowire.Number, v []byte) error {
		if num == recordDigest {
			copy(digest[:], v)
		}
		return nil
	}, func(protowire.Number, uint64) {})
	return digest
}
