package serverlist_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tendril-run/tendril/internal/pool/serverlist"
)

// A list of servers is read whole or not at all, and an error quotes no cell: passwords are among
// them.
func TestRead(t *testing.T) {
	t.Parallel()
	all, err := serverlist.Read(strings.NewReader("\ufeffName, driver,address,user,password,macs,resource_class,traits,cores,memory,disk,inspect\n" +
		"r1-n1,redfish,bmc1.example,root,\"se,cret\",52:54:00:00:00:01 52:54:00:00:00:02,storage,CUSTOM_NVME,16,65536,960,true\n" +
		"r1-n2,ipmi,10.0.0.2,admin,x,,,,,,,\n"))
	want := []serverlist.Server{
		{Name: "r1-n1", Driver: "redfish", Address: "bmc1.example", User: "root", Password: "se,cret", MACs: []string{"52:54:00:00:00:01", "52:54:00:00:00:02"}, ResourceClass: "storage", Traits: []string{"CUSTOM_NVME"}, Cores: 16, Memory: 65536, Disk: 960, Inspect: true},
		{Name: "r1-n2", Driver: "ipmi", Address: "10.0.0.2", User: "admin", Password: "x"},
	}
	if err != nil || !reflect.DeepEqual(all, want) {
		t.Fatalf("Read = %+v, %v, want %+v", all, err, want)
	}
	const head = "name,driver,address,password\n"
	for list, says := range map[string]string{
		"":                               "no first line",
		"name,drivr\n":                   `unknown column "drivr"; did you mean "driver"?`,
		"name,name\n":                    "is there twice",
		head + "a,redfish,b\n":           "is no CSV",
		head + "a,redfish,,hunter2\n":    "line 2: address is missing",
		head + "a,,b,hunter2\n":          "line 2: driver is missing",
		head + "a b,redfish,b,hunter2\n": "write a host name",
		head + "a,redfish,https://u:hunter2@b,x\n":                         "without user and password",
		head + "a,ipmi,b,x\na,ipmi,c,hunter2\n":                            "line 3: the server a is there twice",
		"name,driver,address,macs\na,ipmi,b,hunter2\n":                     "macs: write addresses",
		"name,driver,address,cores\na,ipmi,b,hunter2\n":                    "line 2: cores: write a whole number",
		"name,driver,address,inspect\na,ipmi,b,hunter2\n":                  "inspect: write true or false",
		"name,driver,address,traits\na,ipmi,b,hunter2\n":                   "traits: write capital letters",
		"name,driver,address,resource_class\na,ipmi,b,hunter 2\n":          "resource_class",
		"name,driver,address,kernel\na,ipmi,b,hunter2\n":                   "kernel and ramdisk go together",
		"name,driver,address,kernel,ramdisk\na,ipmi,b,file:///hunter2,x\n": "kernel: write an address with https://",
		"name,driver,address\na,Hunter 2,b\n":                              "driver: write a hardware type",
	} {
		if all, err := serverlist.Read(strings.NewReader(list)); err == nil || all != nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("Read(%q) = %v, %v, want %q", list, all, err, says)
		}
	}
}
