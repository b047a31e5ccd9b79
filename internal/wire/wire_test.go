package wire

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// message has a field of each wire type.
func message() []byte {
	b := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "short")
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), 300)
	b = protowire.AppendFixed32(protowire.AppendTag(b, 3, protowire.Fixed32Type), 7)
	b = protowire.AppendFixed64(protowire.AppendTag(b, 4, protowire.Fixed64Type), 8)
	b = protowire.AppendBytes(protowire.AppendTag(b, 500, protowire.BytesType), bytes.Repeat([]byte("x"), 300))
	b = append(protowire.AppendTag(b, 6, protowire.StartGroupType), protowire.AppendTag(nil, 6, protowire.EndGroupType)...)
	return protowire.AppendBytes(protowire.AppendTag(b, 1, protowire.BytesType), nil)
}

func TestCursorVisitsEachField(t *testing.T) {
	type field struct {
		number protowire.Number
		typ    protowire.Type
		size   int
		uint   uint64
	}
	want := []field{
		{1, protowire.BytesType, 5, 0}, {2, protowire.VarintType, 2, 300}, {3, protowire.Fixed32Type, 4, 7}, {4, protowire.Fixed64Type, 8, 8},
		{500, protowire.BytesType, 300, 0}, {6, protowire.StartGroupType, 1, 0}, {1, protowire.BytesType, 0, 0},
	}
	var whole []byte
	c := Fields(message())
	for c.Next() {
		if len(want) == 0 {
			t.Fatalf("field %d is one too many", c.Number)
		}
		if got := (field{c.Number, c.Type, len(c.Value()), c.Uint()}); got != want[0] {
			t.Errorf("got %+v, want %+v", got, want[0])
		}
		want, whole = want[1:], append(whole, c.Field()...)
	}
	if c.Err() != nil || len(want) > 0 || !bytes.Equal(whole, message()) {
		t.Errorf("%v; %d fields were not visited", c.Err(), len(want))
	}
}

func TestLastReturnsTheLastFieldOfANumber(t *testing.T) {
	b := protowire.AppendString(protowire.AppendTag(message(), 9, protowire.BytesType), "one")
	b = protowire.AppendString(protowire.AppendTag(b, 9, protowire.BytesType), "two")
	if got := Last(b, 9); string(got) != "two" {
		t.Errorf("got %q", got)
	}
	if got := Last(b, 10); got != nil {
		t.Errorf("got %q for a field that is not there", got)
	}
}

func TestCursorStopsAtBrokenBytes(t *testing.T) {
	for name, b := range map[string][]byte{
		"a tag without a value":     {0x0a},
		"a length beyond the end":   {0x0a, 0x05, 'x'},
		"a long length beyond that": {0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f},
		"field number 0":            {0x02, 0x00},
		"a number above the most":   protowire.AppendVarint(protowire.AppendVarint(nil, uint64(protowire.MaxValidNumber+1)<<3), 1),
		"the end of a group":        {0x0c},
		"a wire type that is none":  {0x0f},
	} {
		c := Fields(append(message(), b...))
		n := 0
		for c.Next() {
			n++
		}
		if n != 7 || c.Err() == nil {
			t.Errorf("%s: %d fields, error %v", name, n, c.Err())
		}
		if c.Next() {
			t.Errorf("%s: Next goes on after an error", name)
		}
	}
}

func TestCursorAllocatesNothing(t *testing.T) {
	b, n := message(), 0
	if allocs := testing.AllocsPerRun(100, func() {
		c := Fields(b)
		for c.Next() {
			n += len(c.Value()) + int(c.Uint())
		}
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		n += len(Last(b, 500))
	}); allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// A message that the library decodes is walked to its end, and a message that is walked decodes.
func FuzzCursor(f *testing.F) {
	f.Add(message())
	f.Add([]byte{0x0a, 0x05, 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		c := Fields(b)
		var whole []byte
		for c.Next() {
			whole = append(whole, c.Field()...)
		}
		err := proto.Unmarshal(b, &emptypb.Empty{})
		if (c.Err() == nil) != (err == nil) {
			t.Errorf("the cursor: %v; the library: %v", c.Err(), err)
		}
		if c.Err() == nil && !bytes.Equal(whole, b) || !bytes.HasPrefix(b, whole) {
			t.Errorf("the fields are not the message")
		}
	})
}
