package templatefile

import (
	"math/big"
	"net/netip"

	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

var prefixParameter = function.Parameter{Name: "prefix", Type: cty.String}

// network is the first argument of each function here. Host bits are left out of it, as
// Terraform does.
func network(args []cty.Value) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(args[0].AsString())
	if err != nil {
		return prefix, function.NewArgErrorf(0, "%q is not a network such as 10.0.0.0/16", shortened(args[0].AsString()))
	}
	return prefix.Masked(), nil
}

// integer is the whole number of an argument; a prefix's bits are fewer than 129, so what
// doesn't fit an int fits no network either.
func integer(args []cty.Value, i int) (*big.Int, error) {
	number, accuracy := args[i].AsBigFloat().Int(nil)
	if accuracy != big.Exact {
		return nil, function.NewArgErrorf(i, "it must be a whole number")
	}
	return number, nil
}

// bits is an argument that makes a prefix longer.
func bits(args []cty.Value, i, least int, prefix netip.Prefix) (int, error) {
	number, err := integer(args, i)
	if err != nil {
		return 0, err
	}
	left := prefix.Addr().BitLen() - prefix.Bits()
	if number.Cmp(big.NewInt(int64(least))) < 0 || number.Cmp(big.NewInt(int64(left))) > 0 {
		return 0, function.NewArgErrorf(i, "%s can be extended by %d to %d bits, not by %s", prefix, least, left, shortened(number.String()))
	}
	return int(number.Int64()), nil
}

// after is the address that comes n after the first of a network, which has it.
func after(prefix netip.Prefix, n *big.Int) netip.Addr {
	first := prefix.Addr().AsSlice()
	address, _ := netip.AddrFromSlice(new(big.Int).Add(new(big.Int).SetBytes(first), n).FillBytes(first))
	return address
}

// size is how many addresses networks of so many bits have.
func size(prefix netip.Prefix, bits int) *big.Int {
	return new(big.Int).Lsh(big.NewInt(1), uint(prefix.Addr().BitLen()-bits)) // bits were checked
}

// cidrHostFunc is the address with a number in a network; negative numbers count from its end.
var cidrHostFunc = function.New(&function.Spec{
	Params: []function.Parameter{prefixParameter, {Name: "hostnum", Type: cty.Number}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		prefix, err := network(args)
		if err != nil {
			return cty.NilVal, err
		}
		number, err := integer(args, 1)
		if err != nil {
			return cty.NilVal, err
		}
		all := size(prefix, prefix.Bits())
		if number.Sign() < 0 {
			number = number.Add(number, all)
		}
		if number.Sign() < 0 || number.Cmp(all) >= 0 {
			return cty.NilVal, function.NewArgErrorf(1, "%s has no such address", prefix)
		}
		return cty.StringVal(after(prefix, number).String()), nil
	},
})

var cidrNetmaskFunc = function.New(&function.Spec{
	Params: []function.Parameter{prefixParameter},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		prefix, err := network(args)
		if err != nil {
			return cty.NilVal, err
		}
		if !prefix.Addr().Is4() {
			return cty.NilVal, function.NewArgErrorf(0, "only IPv4 networks have a netmask")
		}
		ones, _ := netip.MustParseAddr("255.255.255.255").Prefix(prefix.Bits())
		return cty.StringVal(ones.Addr().String()), nil
	},
})

var cidrSubnetFunc = function.New(&function.Spec{
	Params: []function.Parameter{prefixParameter, {Name: "newbits", Type: cty.Number}, {Name: "netnum", Type: cty.Number}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		prefix, err := network(args)
		if err != nil {
			return cty.NilVal, err
		}
		newBits, err := bits(args, 1, 0, prefix)
		if err != nil {
			return cty.NilVal, err
		}
		number, err := integer(args, 2)
		if err != nil {
			return cty.NilVal, err
		}
		if number.Sign() < 0 || number.BitLen() > newBits {
			return cty.NilVal, function.NewArgErrorf(2, "with %d bits more, %s has no such subnet", newBits, prefix)
		}
		length := prefix.Bits() + newBits
		return cty.StringVal(netip.PrefixFrom(after(prefix, number.Mul(number, size(prefix, length))), length).String()), nil
	},
})

// cidrSubnetsFunc gives out one subnet after the other, each at the first place that is left.
var cidrSubnetsFunc = function.New(&function.Spec{
	Params:   []function.Parameter{prefixParameter},
	VarParam: &function.Parameter{Name: "newbits", Type: cty.Number},
	Type:     function.StaticReturnType(cty.List(cty.String)),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		prefix, err := network(args)
		if err != nil {
			return cty.NilVal, err
		}
		if len(args) == 1 {
			return cty.ListValEmpty(cty.String), nil
		}
		subnets, used, all := []cty.Value{}, new(big.Int), size(prefix, prefix.Bits())
		for i := 1; i < len(args); i++ {
			newBits, err := bits(args, i, 1, prefix)
			if err != nil {
				return cty.NilVal, err
			}
			length := prefix.Bits() + newBits
			each := size(prefix, length)
			if over := new(big.Int).Mod(used, each); over.Sign() > 0 {
				used.Add(used, each).Sub(used, over)
			}
			start := new(big.Int).Set(used)
			if used.Add(used, each).Cmp(all) > 0 {
				return cty.NilVal, function.NewArgErrorf(i, "%s has no room left for a subnet of /%d", prefix, length)
			}
			subnets = append(subnets, cty.StringVal(netip.PrefixFrom(after(prefix, start), length).String()))
		}
		return cty.ListVal(subnets), nil
	},
})
