{{- /* Four fifths of a quantity of memory, such as 1Gi, 500M or 1073741824, in bytes. */ -}}
{{- define "pubsubd.fourFifths" -}}
{{- $quantity := . -}}
{{- if not (kindIs "string" .) }}{{ $quantity = int64 . | toString }}{{ end -}}
{{- if not (regexMatch "^[0-9]+([.][0-9]+)?([KMGT]i|[kMGT])?$" $quantity) -}}
{{- fail (printf "resources.limits.memory is %q: write it as 1Gi or 1500Mi" $quantity) -}}
{{- end -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $number := regexFind "^[0-9.]+" $quantity -}}
{{- mulf (float64 $number) (get $units (trimPrefix $number $quantity)) 0.8 | int64 -}}
{{- end -}}
