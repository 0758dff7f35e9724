module terrane

go 1.25
