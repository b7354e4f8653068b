// Package tfvars turns a snapshot's variables into a tfvars file, after it has
// checked them against what the template declares: before init, and with every
// problem named at once. Terraform itself drops unknown names silently and
// says what is missing only once providers are downloaded.
//
// It accepts what Terraform accepts, because it reads files and converts values
// with the libraries that Terraform uses. Nothing of a template is run. It must
// not know where a template came from or what will run it.
package tfvars
