package config

import (
	"reflect"
	"slices"
)

// nameFields have, at any depth, names of namespaces, hosts and clients, or patterns for them.
var nameFields = []string{"namespace", "namespaces", "nodeIDs", "identities", "serverName", "trustDomain", "gateways", "hosts"}

// Names returns the names of namespaces, hosts and clients that the config has, patterns too.
func (c *Config) Names() (names []string) {
	eachField("", reflect.ValueOf(c), func(_ string, field reflect.StructField, value reflect.Value) {
		if slices.Contains(nameFields, yamlName(field)) {
			names = appendTexts(names, value)
		}
	})
	return names
}

// appendTexts appends all texts in a value.
func appendTexts(texts []string, v reflect.Value) []string {
	switch v.Kind() {
	case reflect.String:
		return append(texts, v.String())
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return appendTexts(texts, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			texts = appendTexts(texts, v.Index(i))
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			texts = appendTexts(appendTexts(texts, it.Key()), it.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			texts = appendTexts(texts, v.Field(i))
		}
	}
	return texts
}
